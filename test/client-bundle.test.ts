// The client's half goes into browsers: it is small, and nothing in it needs Node.
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import t from 'tap'

t.test('the bundle for a browser', async t => {
  const { outputFiles: [output], metafile } = await build({
    entryPoints: [fileURLToPath(new URL('../lib/client/index.ts', import.meta.url))],
    bundle: true,
    minify: true,
    format: 'esm',
    platform: 'browser',
    target: 'es2022',
    external: ['eventsource-parser'],
    metafile: true,
    write: false
  })
  const { text, contents } = output!
  t.ok(contents.length < 4096, `${contents.length} bytes minified`)
  const imports = Object.values(metafile.outputs)[0]!.imports.map(({ path }) => path)
  t.strictSame(imports, ['eventsource-parser'])
  t.notMatch(text, /node:|require\(|process\.|Buffer/)
})
