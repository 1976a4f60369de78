//! What follows for the jobs that come after others.
