//! Between rows and the words of the domain.
