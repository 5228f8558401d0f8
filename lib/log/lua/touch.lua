-- Keeps a session alive whose calls run. Reply: 1, or 0 when it is gone
local c = counter()
if not c then return 0 end
keep_alive(c.ttl)
return 1
