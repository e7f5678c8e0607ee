"""A topology as a picture, for `txstream describe --svg` and for notebooks. Needs the extra `svg`."""
