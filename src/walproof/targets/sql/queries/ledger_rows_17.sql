-- The rows of one drill with their payloads: before PostgreSQL 18 the reader computes the checksum.
COPY (SELECT writer, number, stated, payload
        FROM walproof.walproof_ledger
       WHERE drill = {drill}) TO STDOUT (FORMAT binary)
