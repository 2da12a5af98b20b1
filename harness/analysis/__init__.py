"""What a run record says: ledger, blame, statistics."""
