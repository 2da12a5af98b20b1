"""What a run leaves behind: recorder, tables, Parquet, invariants."""
