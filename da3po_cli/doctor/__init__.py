"""What `da3po doctor` looks at: small checks in one table, and the findings that they give.

`table.CHECKS` lists the checks; a new one is a function of `findings.Context` that yields findings, and one entry.
Packages are imported by `probe`, in a process of its own, so that a broken one is a finding and not a crash.
"""
