"""Ray actors that do the work, and the cluster that they run on."""
