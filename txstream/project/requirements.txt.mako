txstream
pytest
