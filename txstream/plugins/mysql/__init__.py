"""MySQL and MariaDB as databases of results."""
