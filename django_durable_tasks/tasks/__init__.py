"""Tasks from the call to the ending: options, enqueue, claim, attempts, operator actions."""
