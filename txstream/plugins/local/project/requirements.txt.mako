${requirement}
pytest
