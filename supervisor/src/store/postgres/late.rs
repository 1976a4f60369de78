//! Outcomes whose fence does not hold.
