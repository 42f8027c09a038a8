//! Tests of the agent's side of the stream of cached objects.
