-- KEYS: the set, the member of each id. ARGV: ids.
local gone = 0
for i = 1, #ARGV do
  local member = redis.call('HGET', KEYS[2], ARGV[i])
  if member then
    redis.call('HDEL', KEYS[2], ARGV[i])
    gone = gone + redis.call('ZREM', KEYS[1], member)
  end
end
return gone
