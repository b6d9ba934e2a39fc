"""The durable state machines and the pure logic they decide with."""
