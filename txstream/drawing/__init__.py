"""Drawings: a topology as a picture (with the extra `svg`), the attempts of a run as a chart."""
