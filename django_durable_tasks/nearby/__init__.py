"""What stands close at hand of the database: the index of rows due soon, and wake-ups. The only door to Redis.

Nothing here is ever the truth: what an index or a notification loses, the poll of the database finds.
"""
