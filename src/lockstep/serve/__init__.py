"""`lockstep serve`: a page and an address on this machine that classify pictures. Needs the extra [serve]."""
