// The published form: compiled sources, their types and the Lua beside them.
import { execFileSync } from 'node:child_process'
import { chmodSync, cpSync, existsSync, rmSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

process.chdir(fileURLToPath(new URL('..', import.meta.url)))
rmSync('dist', { recursive: true, force: true })
execFileSync(process.execPath, ['node_modules/typescript/bin/tsc', '-p', 'tsconfig.build.json'], { stdio: 'inherit' })
cpSync('lib/log/lua', 'dist/log/lua', { recursive: true })
if (existsSync('dist/cli/main.js')) chmodSync('dist/cli/main.js', 0o755)
