"""Several ranks on one machine, on its cores and over slow links: what a step takes and what it sends."""
