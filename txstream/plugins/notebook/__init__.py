"""Drawings: a topology as a picture, the attempts of a run as a chart."""
