"""Programming interfaces of other systems as thin adapters on Shoal's own. Native scripts need nothing from here."""
