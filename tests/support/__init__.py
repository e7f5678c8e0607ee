"""What integration and acceptance tests share: texts in Kafka, runs as a user starts them, tables."""
