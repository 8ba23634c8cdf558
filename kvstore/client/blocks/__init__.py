"""KV blocks. Users call `block_store`; `block_jobs` checks a call and makes its job (`*_job`), run
on the channel's io thread; `desk` takes jobs in and lays their results out."""
