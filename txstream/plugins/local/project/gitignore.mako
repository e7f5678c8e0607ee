__pycache__/
.pytest_cache/
/.txstream/
/.venv/
