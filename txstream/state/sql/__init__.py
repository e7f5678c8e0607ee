"""SQL databases as stores of state: PostgreSQL, MySQL, MariaDB and SQLite."""
