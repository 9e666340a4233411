-- KEYS: the set, the member of each id, the mark "filled". ARGV: now (ms), the limit, the number of entries to read, the shards.
-- The shards are '' for all of them, otherwise ',3,17,'. Returns the mark, then member and score of each entry that was removed.
local limit, left, offset = tonumber(ARGV[2]), tonumber(ARGV[3]), 0
local found = { redis.call('GET', KEYS[3]) or '' }
local taken = {}
while #taken < limit and left > 0 do
  local size = math.min(left, math.max(limit, 100))
  local page = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', offset, size)
  for i = 1, #page, 2 do
    local shard = string.match(page[i], '|(%d+)|[^|]*$')
    if #taken < limit and (ARGV[4] == '' or (shard and string.find(ARGV[4], ',' .. shard .. ',', 1, true))) then
      taken[#taken + 1] = page[i]
      found[#found + 1] = page[i]
      found[#found + 1] = page[i + 1]
    end
  end
  if #page < 2 * size then
    break
  end
  offset, left = offset + size, left - size
end
for i = 1, #taken do
  redis.call('ZREM', KEYS[1], taken[i])
  redis.call('HDEL', KEYS[2], string.match(taken[i], '[^|]*$'))
end
return found
