"""Events of notification settings, recorded in the transaction in which they occur."""
