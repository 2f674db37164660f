"""The ledger: every commit attempt recorded by the client before it is sent and after it is answered."""
