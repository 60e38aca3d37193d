"""Git hosts, named repositories, and fetching one revision safely."""
