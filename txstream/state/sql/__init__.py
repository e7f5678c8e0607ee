"""SQL databases as stores of states: PostgreSQL, MySQL, MariaDB and SQLite."""
