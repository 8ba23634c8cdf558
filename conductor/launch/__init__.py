"""`moontide up` and `moontide demo`: start the other daemons as processes, and watch them."""
