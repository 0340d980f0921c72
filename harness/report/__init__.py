"""The report: what a run came to, as one document for machines (`docs/schema/report.json`) and one page for people.

A run of pytest writes it with `--nvx-report`, a sweep with `--report`; `nvx-harness report` merges the parts of a run
that was split, and draws the page.
"""
