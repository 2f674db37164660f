-- The rows of one drill, with the checksum of the payload computed by this very member (PostgreSQL 18).
COPY (SELECT writer, number, stated, crc32(payload)
        FROM walproof.walproof_ledger
       WHERE drill = {drill}) TO STDOUT (FORMAT binary)
