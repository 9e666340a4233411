-- KEYS: the set, the member of each id. ARGV: member and score of each entry; an entry whose score has changed is kept.
-- Scores are compared as full milliseconds between the years 1 and 9999, as callers read them.
-- Returns the members that were removed.
local function whole(score)
  return math.floor(math.max(-62135596800000, math.min(tonumber(score), 253402300799000)))
end
local gone = {}
for i = 1, #ARGV, 2 do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if not score or whole(score) == tonumber(ARGV[i + 1]) then
    redis.call('ZREM', KEYS[1], ARGV[i])
    local id = string.match(ARGV[i], '[^|]*$')
    if redis.call('HGET', KEYS[2], id) == ARGV[i] then
      redis.call('HDEL', KEYS[2], id)
    end
    gone[#gone + 1] = ARGV[i]
  end
end
return gone
