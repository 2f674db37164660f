"""The track record: known pitfalls of synchronous replication, each reproduced by one command on a lab of its own."""
