"""What a machine has, beside what a store asks of it: `moontide doctor`.

A check (`checks/`) reads a `Host` and may try things through `Trials`; it gives findings and
changes nothing that stays. Nothing here talks to a daemon."""
