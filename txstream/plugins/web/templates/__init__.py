"""The templates of the views, one for each, and `layout` around them all."""
