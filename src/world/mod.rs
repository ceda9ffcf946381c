//! What is in the cluster, as far as a rule reads it.
