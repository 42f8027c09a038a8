//! The hub over a real port, with a real client.
