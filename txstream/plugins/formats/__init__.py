"""Values in Avro and Protobuf as typed columns, their schemas, and a client of schema registries."""
