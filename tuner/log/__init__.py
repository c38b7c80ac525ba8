"""The farm's memory: Parquet datasets that grow by whole parts."""
