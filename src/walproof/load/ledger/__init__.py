"""The ledger: every commit attempt noted on the client's side before it is sent and after it is answered."""
