-- KEYS: the set, the member of each id. ARGV: life of both (ms), then id, member and score of each row.
-- A task has one entry. Its earlier entry for another queue, priority or instant is removed.
for i = 2, #ARGV, 3 do
  local before = redis.call('HGET', KEYS[2], ARGV[i])
  if before and before ~= ARGV[i + 1] then
    redis.call('ZREM', KEYS[1], before)
  end
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  redis.call('ZADD', KEYS[1], ARGV[i + 2], ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return redis.call('ZCARD', KEYS[1])
