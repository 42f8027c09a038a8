//! The integration tests, in one binary.
