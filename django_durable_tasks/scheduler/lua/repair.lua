-- KEYS: the set, the member of each id. ARGV: life of both (ms), then id, member, score and the member that was read
-- ('' for none) of each row. Returns the ids that were written: a row whose member has changed is not written.
local done = {}
for i = 2, #ARGV, 4 do
  local before = redis.call('HGET', KEYS[2], ARGV[i]) or ''
  if before == ARGV[i + 3] then
    if before ~= '' and before ~= ARGV[i + 1] then
      redis.call('ZREM', KEYS[1], before)
    end
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
    redis.call('ZADD', KEYS[1], ARGV[i + 2], ARGV[i + 1])
    done[#done + 1] = ARGV[i]
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return done
