"""The sandbox store: layout, records, lifecycle lock, launch journal, recovery and removal."""
