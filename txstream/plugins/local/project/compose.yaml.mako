# ZooKeeper, Kafka and PostgreSQL to develop with: docker compose up -d
# They listen on this machine alone and ask for no password, so they are nothing for production.
services:
  zookeeper:
    image: zookeeper:3.9
    ports: ["127.0.0.1:2181:2181"]
  kafka:
    image: apache/kafka:4.1.0
    ports: ["127.0.0.1:9092:9092"]
  postgresql:
    image: postgres:18
    environment:
      POSTGRES_USER: ${name}
      POSTGRES_HOST_AUTH_METHOD: trust
    ports: ["127.0.0.1:5432:5432"]
