-- KEYS: the set, the member of each id, the mark "filled". Returns the mark and the earliest score.
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return { redis.call('GET', KEYS[3]) or '', first[2] or '' }
